//! Tensors that stay on a device from step to step.

use super::*;
use nereid_gpu::driver::Driver as _;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpu, Gpus, IpcAllocation, Settings};
use nereid_request::{InputPlacement, SharedMemory};

fn gpu() -> Gpu {
    let gpus = Gpus::with(Arc::new(Simulated::new(Spec::prompt(1, 3))), &Settings::default());
    gpus.get(0).expect("a device").clone()
}

/// Memory of four bytes that a client has reserved.
fn place() -> OutputDestination {
    let driver = Arc::new(Simulated::new(Spec::prompt(1, 3)));
    let handle = driver.ipc_export(0, driver.allocate(0, 4).unwrap()).unwrap();
    let memory = SharedMemory::new(Gpus::with(driver, &Settings::default()));
    memory.register_cuda(b"r", IpcAllocation { handle: &handle, device_id: 0, byte_size: 4 }).unwrap();
    OutputDestination::At(memory.gpus.regions().get(b"r").unwrap().target(0, 4).unwrap())
}

/// `X -> p -> A -> q, r -> Y, Z`, and `p` also makes `W`, which is an output only.
fn bench() -> Bench {
    let steps = ["p I=X -> O=A P=W", "q I=A -> O=Y", "r I=A -> O=Z"];
    let spec = ensemble("X", "Y Z W", &steps, "", "");
    let parts = ["q", "r"].map(|name| model(name, "I", "O", ""));
    Bench::new(spec, parts.into_iter().chain([model("p", "I", "O P", "")]).collect())
}

fn destination(request: &Request, output: &str) -> &'static str {
    match request.destination_of(&Text::from(output), 4) {
        Ok(OutputDestination::OnHost) => "host",
        Ok(OutputDestination::OnDevice) => "device",
        Ok(OutputDestination::At(_)) => "place",
        Err(_) => "none",
    }
}

#[test]
fn a_tensor_stays_on_a_device_if_all_readers_take_it_there() {
    let on_device = || OutputDestination::OnDevice;
    type Case<'a> = (&'a [&'a str], OutputDestination, [&'a str; 2]);
    let cases: [Case<'_>; 6] = [
        (&[], OutputDestination::OnHost, ["host", "host"]),
        (&["q"], on_device(), ["host", "device"]),
        (&["q", "r"], OutputDestination::OnHost, ["device", "host"]),
        (&["q", "r"], on_device(), ["device", "device"]),
        (&["q", "r"], place(), ["device", "place"]),
        (&["p", "r"], place(), ["host", "place"]),
    ];
    for (number, (takers, client, expected)) in cases.into_iter().enumerate() {
        let bench = bench();
        *lock(&bench.client.destination) = client;
        takers.iter().for_each(|name| bench.part(name).takes_device_tensors.store(true, Ordering::Relaxed));
        let _ticket = bench.send(1, &[("X", "x")]);
        let request = bench.part("p").take().unwrap();
        // Outputs that other steps read, and outputs that are answers.
        assert_eq!([destination(&request, "O"), destination(&request, "P")], expected, "{number}");
        assert_eq!(destination(&request, "nothing"), "host");
        // A reader that no requested output needs does not count.
        let only_y = {
            let mut request = request_to(&bench.spec, &bench.client, 2, &[("X", "x")]);
            request.outputs.push(nereid_request::RequestedOutput { name: Text::from("Y"), index: 0 });
            bench.hand_in(request);
            bench.part("p").take().unwrap()
        };
        let takes = takers.contains(&"q");
        assert_eq!(destination(&only_y, "O"), if takes { "device" } else { "host" }, "{number}");
    }
}

#[test]
fn a_tensor_on_a_device_is_handed_on_and_not_copied() {
    let gpu = gpu();
    let bench = bench();
    for name in ["q", "r"] {
        bench.part(name).takes_device_tensors.store(true, Ordering::Relaxed);
    }
    *lock(&bench.client.destination) = OutputDestination::OnDevice;
    let mut request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    let given = gpu.put(b"g").unwrap();
    request.inputs[0].data.clear();
    request.inputs[0].placement =
        Some(Box::new(InputPlacement { on_device: Some(given.clone()), ..InputPlacement::default() }));
    let _ticket = bench.hand_in(request);
    let request = bench.part("p").take().unwrap();
    assert!(request.inputs[0].on_device().unwrap().same_memory(&given));
    let made = gpu.put(b"made").unwrap();
    let mut response = response_of(&bench.part("p"), &request, "");
    for output in &mut response.outputs {
        output.data.clear();
        (output.shape, output.on_device) = (Shape::from_slice(&[4]), Some(Box::new(made.clone())));
    }
    request.finish(response);
    bench.client.work_all();
    for name in ["q", "r"] {
        let request = bench.part(name).take().unwrap();
        let input = &request.inputs[0];
        assert!(input.data.is_empty() && input.on_device().unwrap().same_memory(&made), "{name}");
        request.finish(response_of(&bench.part(name), &request, ""));
        bench.client.work_all();
    }
    let answers = lock(&bench.client.answers);
    let answer = answers[&1][0].response.as_ref().unwrap();
    let of = |name: &str| answer.outputs.iter().find(|output| output.name.as_bytes() == name.as_bytes()).unwrap();
    assert!(of("W").on_device.as_ref().unwrap().same_memory(&made));
    assert_eq!((of("W").byte_size(), text_of(&of("Y").data)), (4, "q.O()".to_owned()));
}
