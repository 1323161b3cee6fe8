//! The messages of vhost-user that this node follows, one method each, and those that it does not.
//!
//! How: the `vhost` crate reads and checks them; here each becomes a call on the [`Device`].
//! Invariant: what was not offered is refused. Not for: deciding anything.

use super::device::{Device, REGIONS_MAX, Refusal};
use layby_frontend::vhost::{CONFIG_BYTES, QUEUES_MAX, RamRegion};
use std::fs::File;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};

impl From<Refusal> for Error {
    fn from(Refusal(cause): Refusal) -> Self {
        Error::ReqHandlerError(std::io::Error::other(cause))
    }
}

fn not_offered<T>() -> Result<T> {
    Err(Error::InvalidOperation("the message belongs to a feature that was not offered"))
}

fn ram_region(region: &VhostUserMemoryRegion, file: File) -> RamRegion {
    RamRegion {
        guest: region.guest_phys_addr,
        monitor: region.user_addr,
        length: region.memory_size,
        offset: region.mmap_offset,
        file,
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        Ok(Device::set_features(self, features)?)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions = regions.iter().zip(files).map(|(region, file)| ram_region(region, file));
        self.set_ram(regions.collect())?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        Ok(self.set_entries(index, entries)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        Ok(self.set_addresses(index, [descriptors, used, available])?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        Ok(self.set_base(index, base)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.take_base(index)?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, event: Option<File>) -> Result<()> {
        Ok(self.set_kick(index.into(), event)?)
    }

    fn set_vring_call(&mut self, index: u8, event: Option<File>) -> Result<()> {
        Ok(self.set_call(index.into(), event)?)
    }

    fn set_vring_err(&mut self, _index: u8, _event: Option<File>) -> Result<()> {
        // Broken queues are in the node's log; monitors only print what comes here.
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let marks = VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT.bits();
        self.set_marks(features & marks != 0);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES_MAX.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        Ok(self.enable(index, enable)?)
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let (start, count) = (offset as usize, size as usize);
        let config = self.disk().config();
        let known = &config[start.min(CONFIG_BYTES)..(start + count).min(CONFIG_BYTES)];
        let mut answer = known.to_vec();
        // A monitor that knows more fields than we do finds them empty.
        answer.resize(count, 0);
        Ok(answer)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        // Nothing in there can be changed by a guest; to disconnect it would be too hard an answer.
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn get_inflight_fd(&mut self, want: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, entries) = (want.num_queues, want.queue_size);
        let file = self.make_inflight(queues, entries)?;
        let bytes = file.metadata().map_err(Error::ReqHandlerError)?.len();
        Ok((VhostUserInflight::new(bytes, 0, queues, entries), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        Ok(self.set_inflight(file, region.mmap_offset, region.num_queues, region.queue_size)?)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        self.add_region(ram_region(region, file))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Ok(self.remove_region(region.guest_phys_addr, region.memory_size)?)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        not_offered()
    }
}
