//! `layby client`: the NBD clients of a running node.

use super::volume::said;
use super::{ask, list_text};
use crate::arguments::{ClientArguments, ClientCommand, DisconnectArguments};
use crate::output::{Failure, Output, bytes, table};
use layby_daemon::api::ClientAnswer;
use layby_daemon::client::ControlClient;
use layby_daemon::config::Name;
use layby_daemon::error::{Report, ReportKind};

pub(crate) fn client(arguments: ClientArguments, output: &mut Output) -> Result<(), Failure> {
    match arguments.command {
        ClientCommand::List(node) => {
            let clients = ask(&node, |client| async move { client.clients().await })?;
            if node.json { output.json(&clients) } else { output.line(&client_table(clients)) }
        }
        ClientCommand::Disconnect(DisconnectArguments { number, volume, node }) => {
            let ended = ask(&node, |client| async move {
                match (number, volume) {
                    (Some(number), _) => client.client_disconnect(number).await.map(|()| 1),
                    (None, Some(volume)) => disconnect_all(&client, &volume).await,
                    (None, None) => unreachable!("one of them is required"),
                }
            })?;
            said(&format!("disconnected {ended} client(s)"), &node, output)
        }
    }
}

/// Disconnects the clients of a volume; says how many there were.
async fn disconnect_all(client: &ControlClient, volume: &Name) -> Result<u64, Report> {
    // A name that does not exist has no clients, and is a mistake.
    client.volume(volume).await?;
    let mut ended = 0;
    for ClientAnswer { number, .. } in
        client.clients().await?.into_iter().filter(|client| client.volume == *volume)
    {
        match client.client_disconnect(number).await {
            Ok(()) => ended += 1,
            // It has left by itself.
            Err(Report { kind: ReportKind::NotFound, .. }) => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(ended)
}

fn client_table(clients: Vec<ClientAnswer>) -> String {
    let heads = [
        "client",
        "volume",
        "class",
        "peer",
        "certificate",
        "connected",
        "age",
        "requests",
        "bytes",
    ];
    let mut table = table(heads, 6);
    for client in clients {
        table.add_row([
            client.number.to_string(),
            client.volume.to_string(),
            client.class.to_string(),
            client.peer,
            list_text(client.certificate.into_iter()),
            client.connected,
            format!("{} s", client.age_seconds),
            client.requests_inflight.to_string(),
            bytes(client.bytes_inflight),
        ]);
    }
    table.to_string()
}
