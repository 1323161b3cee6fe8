//! The API's description through programs of others: a validator, and a client that a generator
//! makes of it.

use layby_tests::{HttpRequest, Node, python_script, python_tool, run, small_levels};
use tempfile::TempDir;

/// Goal: what the node serves as its description is valid OpenAPI. Method: a public validator.
#[test]
fn the_description_is_valid() {
    let Some(validator) = python_tool("openapi-spec-validator") else { return };
    let dir = TempDir::new().expect("a temporary folder");
    let node = Node::start(&dir.path().join("node"), &small_levels());
    let text = HttpRequest::new("GET", "/v1/openapi.json").send(&node.http()).body;
    node.stop();
    let file = dir.path().join("openapi.json");
    std::fs::write(&file, text).expect("the test's own folder");
    let checked = run(&validator, &[&file.to_string_lossy()]);
    assert!(checked.success, "{}{}", checked.stdout, checked.stderr);
}

/// Goal: a client that is generated from the description operates a node. Method: generate it,
/// then create, read, change and delete a volume over the unix socket, and meet a refusal.
#[test]
fn a_generated_client_operates_a_node() {
    let Some(generator) = python_tool("openapi-python-client") else { return };
    let dir = TempDir::new().expect("a temporary folder");
    let node = Node::start(&dir.path().join("node"), &small_levels());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let out = dir.path().join("layby_client").to_string_lossy().into_owned();
    let words = ["generate", "--path", file, "--output-path", &out, "--meta", "none"];
    let made = run(&generator, &words);
    assert!(made.success, "{}{}", made.stdout, made.stderr);
    let script = r#"
import sys, httpx
sys.path.insert(0, sys.argv[1])
from layby_client import Client
from layby_client.api.volumes import volume, volume_create, volume_delete, volume_set
from layby_client.models import DeleteData, VolumeAnswer, VolumeCreate, VolumePatch
transport = httpx.HTTPTransport(uds=sys.argv[2])
client = Client(base_url="http://localhost", httpx_args={"transport": transport})
made = volume_create.sync_detailed(client=client, body=VolumeCreate(name="maps", size="4MiB"))
assert made.status_code == 201, made
shown = volume.sync_detailed("maps", client=client)
assert isinstance(shown.parsed, VolumeAnswer) and shown.parsed.size_bytes == 4 << 20, shown
patch = VolumePatch.from_dict({"read_only": True})
changed = volume_set.sync_detailed("maps", client=client, body=patch)
assert changed.parsed.read_only is True, changed
assert volume.sync_detailed("none", client=client).status_code == 404
gone = volume_delete.sync_detailed("maps", client=client, data=DeleteData.DELETE)
assert gone.status_code == 204, gone
"#;
    let folder = dir.path().to_string_lossy().into_owned();
    let socket = node.control().to_string_lossy().into_owned();
    let Some(ran) = python_script(script, &[&folder, &socket]) else { return };
    assert!(ran.success, "{}{}", ran.stdout, ran.stderr);
    node.stop();
}
