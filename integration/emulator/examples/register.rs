//! An emulator inside the program, used through the real SDK: an instance is registered, discovered, and lost to a fault.

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use cloudmap_emulator::{Effect, Emulator, EmulatorSettings, Fault};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await?;
    let client = emulator.client("example");

    client.create_http_namespace().name("shop").send().await?;
    let namespaces = client.list_namespaces().send().await?;
    let namespace = namespaces.namespaces().first().and_then(|namespace| namespace.id()).unwrap_or_default();
    let created = client.create_service().namespace_id(namespace).name("orders").send().await?;
    let service = created.service().and_then(|service| service.id()).unwrap_or_default();

    let register = || {
        client.register_instance().service_id(service).instance_id("task-1").attributes("AWS_INSTANCE_IPV4", "10.0.0.1")
    };
    emulator.control().add_fault(Fault::on("RegisterInstance", Effect::DropResponse).times(1));
    println!("the first answer is lost: {}", register().send().await.is_err());
    register().send().await?;

    let found = client.discover_instances().namespace_name("shop").service_name("orders").send().await?;
    for instance in found.instances() {
        println!("found {} with {:?}", instance.instance_id().unwrap_or("?"), instance.attributes());
    }
    println!("RegisterInstance was called {} times", emulator.control().counters().calls("RegisterInstance"));
    emulator.shutdown().await;
    Ok(())
}
