//! The data of handshake options, parsed, and the replies to options, written.
//!
//! How: a parse function returns `None` for anything malformed; [`OptionReply`] appends replies for
//! one option.
//! Invariant: the data must be used up exactly; trailing bytes are malformed.
//! Cost: names and queries are borrowed from the option's bytes.
//! Not for: deciding what an option does; see `handshake`.

use super::export::ExportInfo;
use super::wire::{self, OPTION_REPLY_MAGIC, Reader, info, put_u16, put_u32, put_u64, reply};

/// The smallest request an export serves without refusing it, in bytes.
const BLOCK_SIZE_MIN: u32 = 1;

/// The data of `INFO` and `GO`.
#[derive(Debug)]
pub(crate) struct InfoRequest<'bytes> {
    pub(crate) name: &'bytes str,
    pub(crate) wants_name: bool,
    pub(crate) wants_description: bool,
    pub(crate) wants_block_size: bool,
}

impl<'bytes> InfoRequest<'bytes> {
    pub(crate) fn parse(data: &'bytes [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let name = reader.text()?;
        let (mut wants_name, mut wants_description, mut wants_block_size) = (false, false, false);
        for _ in 0..reader.u16()? {
            match reader.u16()? {
                info::NAME => wants_name = true,
                info::DESCRIPTION => wants_description = true,
                info::BLOCK_SIZE => wants_block_size = true,
                // The export item comes unasked; items of other servers are ignored by rule.
                _ => {}
            }
        }
        reader.finish()?;
        Some(InfoRequest { name, wants_name, wants_description, wants_block_size })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`, as far as one context needs it.
#[derive(Debug)]
pub(crate) struct ContextRequest<'bytes> {
    pub(crate) name: &'bytes str,
    pub(crate) queries: u32,
    /// Some query is `base:allocation`.
    pub(crate) names_allocation: bool,
    /// Some query is `base:`, the wildcard of listing.
    pub(crate) names_base: bool,
}

impl<'bytes> ContextRequest<'bytes> {
    pub(crate) fn parse(data: &'bytes [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let (name, queries) = (reader.text()?, reader.u32()?);
        let (mut names_allocation, mut names_base) = (false, false);
        for _ in 0..queries {
            // A query costs at least four bytes of data, so the count cannot outlast the option.
            let query = reader.text()?;
            names_allocation |= query == wire::CONTEXT_ALLOCATION;
            names_base |= query == wire::CONTEXT_BASE;
        }
        reader.finish()?;
        Some(ContextRequest { name, queries, names_allocation, names_base })
    }
}

/// Appends the replies to one option.
pub(crate) struct OptionReply<'out> {
    pub(crate) option: u32,
    pub(crate) out: &'out mut Vec<u8>,
}

impl OptionReply<'_> {
    fn head(&mut self, kind: u32, length: u32) {
        put_u64(self.out, OPTION_REPLY_MAGIC);
        put_u32(self.out, self.option);
        put_u32(self.out, kind);
        put_u32(self.out, length);
    }
    pub(crate) fn ack(&mut self) {
        self.head(reply::ACK, 0);
    }
    pub(crate) fn error(&mut self, kind: u32, message: &str) {
        assert!(kind & reply::ERROR != 0, "an error reply carries the error bit");
        self.head(kind, wire::text_length(message));
        self.out.extend_from_slice(message.as_bytes());
    }
    /// One line of an export list.
    pub(crate) fn server(&mut self, name: &str) {
        let length = wire::text_length(name);
        self.head(reply::SERVER, 4 + length);
        put_u32(self.out, length);
        self.out.extend_from_slice(name.as_bytes());
    }
    pub(crate) fn context(&mut self, id: u32, name: &str) {
        self.head(reply::META_CONTEXT, 4 + wire::text_length(name));
        put_u32(self.out, id);
        self.out.extend_from_slice(name.as_bytes());
    }
    /// Everything that `request` wants to know of `export`, without the closing acknowledgement.
    pub(crate) fn export(&mut self, export: &ExportInfo, flags: u16, request: &InfoRequest<'_>) {
        self.head(reply::INFO, 12);
        put_u16(self.out, info::EXPORT);
        put_u64(self.out, export.size);
        put_u16(self.out, flags);
        if request.wants_name {
            self.info_text(info::NAME, &export.name);
        }
        if request.wants_description && !export.description.is_empty() {
            self.info_text(info::DESCRIPTION, &export.description);
        }
        if request.wants_block_size {
            self.head(reply::INFO, 14);
            put_u16(self.out, info::BLOCK_SIZE);
            put_u32(self.out, BLOCK_SIZE_MIN);
            put_u32(self.out, export.block_size.bytes());
            put_u32(self.out, export.request_length_max);
        }
    }
    fn info_text(&mut self, item: u16, text: &str) {
        self.head(reply::INFO, 2 + wire::text_length(text));
        put_u16(self.out, item);
        self.out.extend_from_slice(text.as_bytes());
    }
}
