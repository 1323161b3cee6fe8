//! What a node lets other machines reach, said at its start: an open address is chosen, not found.
//!
//! How: the addresses that really listen, beside TLS and the volumes' allow-lists.
//! Invariant: an NBD address beyond loopback is silent only where clients are authenticated, or all
//! volumes have an allow-list, and TLS is required. Cost: once per start.
//! Not for: refusing it; a closed network is an operator's to judge.

use crate::config::{Config, NbdConfig, TlsMode};
use crate::control::View;
use std::net::SocketAddr;

/// Volumes that are named at most.
const NAMES_MAX: usize = 5;

/// A line per address, or group of addresses, that other machines can reach without enough before
/// it.
pub(crate) fn notes(
    config: &Config,
    view: &View,
    nbd: &[SocketAddr],
    metrics: Option<SocketAddr>,
) -> Vec<String> {
    let open: Vec<String> =
        nbd.iter().filter(|a| !a.ip().is_loopback()).map(ToString::to_string).collect();
    let faults = faults(&config.nbd, view);
    let nbd = (!open.is_empty() && !faults.is_empty()).then(|| {
        format!(
            "other machines can reach NBD at {}: {}; see docs/security.md",
            open.join(", "),
            faults.join("; ")
        )
    });
    let metrics = metrics.filter(|address| !address.ip().is_loopback()).map(|address| {
        format!(
            "other machines can read the metrics at {address}, which name volumes and classes; it \
             takes no changes"
        )
    });
    nbd.into_iter().chain(metrics).collect()
}

fn faults(nbd: &NbdConfig, view: &View) -> Vec<String> {
    let mut faults = Vec::new();
    let is_encrypted = nbd.tls == TlsMode::Required;
    if !is_encrypted {
        faults.push("it is not encrypted unless `tls` of [nbd] is `required`".to_owned());
    }
    // Where certificates give the volumes, who shows none gets none.
    if is_encrypted && nbd.tls_client_ca.is_some() || nbd.tls_clients.is_some() {
        return faults;
    }
    let volumes = view.catalog.volumes.iter().filter(|(_, record)| record.allow.is_empty());
    let names: Vec<String> = volumes.map(|(name, _)| format!("`{name}`")).collect();
    if !names.is_empty() {
        let more = names.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = names[..names.len().min(NAMES_MAX)].join(", ");
        // Authorities count for encrypted clients alone, and others are let in, too.
        let why = match nbd.tls_client_ca {
            Some(_) => "`tls_client_ca` counts only where `tls` is `required`",
            None => "there is no `tls_client_ca`",
        };
        faults.push(format!(
            "whoever reaches it may use volumes without `allow` ({names}{more}), and {why}"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;

    /// Goal: an address that others reach is silent only behind TLS and an allow-list, or client
    /// certificates. Method: configurations of each kind.
    #[tokio::test]
    async fn open_addresses_are_noted() {
        let said = |text: &str, addresses: &[&str]| {
            let node = MockNode::new(text);
            let addresses: Vec<_> = addresses.iter().map(|a| a.parse().expect("one")).collect();
            notes(&node.control.facts().config, &node.control.view(), &addresses, None).join("\n")
        };
        let tls = "[nbd]\ntls = \"required\"\ntls_certificate = \"c\"\ntls_key = \"k\"\n";
        let allowing = "[volume.a]\nsize = \"1MiB\"\nallow = [\"10.0.0.0/8\"]\n";
        let open = ["0.0.0.0:10809"];
        assert_eq!(said("", &["127.0.0.1:10809", "[::1]:10809"]), "");
        let plain = said("", &open);
        assert!(plain.contains("0.0.0.0:10809") && plain.contains("not encrypted"), "{plain}");
        assert!(plain.contains("`vol0`") && plain.contains("`allow`"), "{plain}");
        assert!(said(tls, &open).contains("`vol0`"));
        assert!(said(allowing, &open).contains("not encrypted"));
        assert_eq!(said(&format!("{tls}{allowing}"), &open), "");
        assert_eq!(said(&format!("{tls}tls_client_ca = \"ca\"\n"), &open), "");
        let allowed = tls.replace("required", "allowed");
        let mapped = said(
            &format!("{allowed}tls_client_ca = \"ca\"\ntls_clients = {{ a = [\"vol0\"] }}\n"),
            &open,
        );
        assert!(mapped.contains("not encrypted") && !mapped.contains("`vol0`"), "{mapped}");
        let known = said(&format!("{allowed}tls_client_ca = \"ca\"\n"), &open);
        assert!(known.contains("counts only") && !known.contains("there is no"), "{known}");
    }

    /// Goal: metrics beyond loopback are noted. Method: both kinds of address.
    #[tokio::test]
    async fn open_metrics_are_noted() {
        let node = MockNode::new("");
        let (facts, view) = (node.control.facts(), node.control.view());
        let of = |address: &str| notes(&facts.config, &view, &[], address.parse().ok());
        assert!(of("127.0.0.1:9").is_empty());
        assert!(of("10.0.0.1:9")[0].contains("no changes"));
    }
}
