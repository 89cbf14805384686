//! Gauges of the host's GPUs (contract/metrics.md section 2, server gauges), for any reader of devices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::exposition::{Exposition, Kind, Value, push_label};

/// A value that can be read of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Percent of the time in use.
    Utilization,
    /// Bytes.
    MemoryTotal,
    MemoryUsed,
    /// Milliwatts.
    PowerUsage,
    PowerLimit,
    /// Millijoules since some moment in the past.
    Energy,
}

const FIELDS: [Field; 6] =
    [Field::Utilization, Field::MemoryTotal, Field::MemoryUsed, Field::PowerUsage, Field::PowerLimit, Field::Energy];

/// The GPUs of the host, numbered from 0 without gaps.
pub trait Devices {
    /// Their UUIDs.
    fn uuids(&self) -> Vec<String>;

    fn read(&self, device: usize, field: Field) -> Result<u64, String>;
}

impl<D: Devices + ?Sized> Devices for Box<D> {
    fn uuids(&self) -> Vec<String> {
        (**self).uuids()
    }

    fn read(&self, device: usize, field: Field) -> Result<u64, String> {
        (**self).read(device, field)
    }
}

/// After this many failures in a row a field of a device is no longer read.
const FAILURES_MAX: u32 = 3;

/// The values last read; 0 until the first reading.
#[derive(Debug, Default)]
pub struct GpuGauges {
    gpus: Vec<Gpu>,
}

#[derive(Debug)]
struct Gpu {
    /// Text of the labels.
    labels: String,
    uuid: String,
    cells: [Cell; FIELDS.len()],
}

#[derive(Debug, Default)]
struct Cell {
    /// In the unit of its [`Field`].
    value: AtomicU64,
    /// True if it is no longer read, and not shown.
    is_lost: AtomicBool,
}

/// The reading thread's record of a field of a device.
#[derive(Debug, Clone, Copy, Default)]
struct FieldHistory {
    failures: u32,
    /// Energy at the first reading, which stands for the server's start.
    first: Option<u64>,
}

impl GpuGauges {
    pub fn new(uuids: Vec<String>) -> GpuGauges {
        let gpu = |uuid: String| {
            let mut labels = String::new();
            push_label(&mut labels, "gpu_uuid", &uuid);
            Gpu { labels, uuid, cells: Default::default() }
        };
        GpuGauges { gpus: uuids.into_iter().map(gpu).collect() }
    }

    pub(super) fn render(&self, exposition: &mut Exposition) {
        for (place, field) in FIELDS.into_iter().enumerate() {
            let (name, help, kind, value) = family_of(field);
            let mut family = exposition.family(name, help, kind);
            for gpu in &self.gpus {
                let cell = gpu.cells.get(place).filter(|cell| !cell.is_lost.load(Ordering::Relaxed));
                if let Some(cell) = cell {
                    family.sample(&gpu.labels, value(cell.value.load(Ordering::Relaxed)));
                }
            }
        }
    }
}

type FamilyOf = (&'static str, &'static str, Kind, fn(u64) -> Value);

fn family_of(field: Field) -> FamilyOf {
    let thousandths: fn(u64) -> Value = |value| Value::Real(value as f64 / 1000.0);
    let bytes: fn(u64) -> Value = Value::Integer;
    let percent: fn(u64) -> Value = |value| Value::Real(value as f64 / 100.0);
    match field {
        Field::Utilization => ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", Kind::Gauge, percent),
        Field::MemoryTotal => ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", Kind::Gauge, bytes),
        Field::MemoryUsed => ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", Kind::Gauge, bytes),
        Field::PowerUsage => ("nv_gpu_power_usage", "GPU power usage in watts", Kind::Gauge, thousandths),
        Field::PowerLimit => ("nv_gpu_power_limit", "GPU power management limit in watts", Kind::Gauge, thousandths),
        Field::Energy => {
            let help = "GPU energy consumption in joules since the Triton Server started";
            ("nv_energy_consumption", help, Kind::Counter, thousandths)
        }
    }
}

/// Reads devices into [`GpuGauges`].
pub struct GpuReader<D> {
    devices: D,
    histories: Vec<[FieldHistory; FIELDS.len()]>,
}

impl<D: Devices> GpuReader<D> {
    /// The reader, and the gauges that it fills. `None` where there is no device.
    pub fn new(devices: D) -> Option<(GpuReader<D>, GpuGauges)> {
        let gauges = GpuGauges::new(devices.uuids());
        let histories = vec![Default::default(); gauges.gpus.len()];
        (!gauges.gpus.is_empty()).then_some((GpuReader { devices, histories }, gauges))
    }

    /// Energy counts from here on.
    pub fn begin(&mut self) {
        for (device, histories) in self.histories.iter_mut().enumerate() {
            for (field, memory) in FIELDS.into_iter().zip(histories) {
                if field == Field::Energy {
                    memory.first = self.devices.read(device, field).ok();
                }
            }
        }
    }

    /// Reads all fields. A field that cannot be read keeps its former value, until it is given up.
    pub fn read(&mut self, gauges: &GpuGauges) {
        for (device, (gpu, histories)) in gauges.gpus.iter().zip(&mut self.histories).enumerate() {
            for ((field, memory), cell) in FIELDS.into_iter().zip(histories).zip(&gpu.cells) {
                if memory.failures >= FAILURES_MAX {
                    continue;
                }
                match self.devices.read(device, field) {
                    Ok(value) => {
                        memory.failures = 0;
                        cell.value.store(memory.since_start(field, value), Ordering::Relaxed);
                    }
                    Err(reason) => {
                        memory.failures += 1;
                        if memory.failures == FAILURES_MAX {
                            cell.is_lost.store(true, Ordering::Relaxed);
                            let family = family_of(field).0;
                            tracing::warn!("{family} of {} is not read any more: {reason}", gpu.uuid);
                        }
                    }
                }
            }
        }
    }
}

impl FieldHistory {
    fn since_start(&mut self, field: Field, value: u64) -> u64 {
        match field {
            Field::Energy => value.saturating_sub(*self.first.get_or_insert(value)),
            _ => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell as Set, RefCell};
    use std::collections::HashSet;

    use super::*;

    /// Two devices that return the number of the reading, and fail where the test sets it.
    #[derive(Default)]
    struct Fake {
        round: Set<u64>,
        failing: RefCell<HashSet<(usize, u8)>>,
        reads: Set<usize>,
    }

    impl Devices for &Fake {
        fn uuids(&self) -> Vec<String> {
            vec!["GPU-a".to_owned(), "GPU-b".to_owned()]
        }

        fn read(&self, device: usize, field: Field) -> Result<u64, String> {
            self.reads.set(self.reads.get() + 1);
            if self.failing.borrow().contains(&(device, field as u8)) {
                return Err("no".to_owned());
            }
            let base = [25, 1 << 30, 1 << 20, 70_500, 300_000, 1_000_000][field as usize];
            Ok(base + (device as u64) * 10 + self.round.get())
        }
    }

    fn page(gauges: &GpuGauges) -> Vec<String> {
        let mut exposition = Exposition::default();
        gauges.render(&mut exposition);
        let text = exposition.into_text();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn every_family_has_its_unit_and_the_label_of_its_device() {
        let fake = Fake::default();
        let (mut reader, gauges) = GpuReader::new(&fake).unwrap();
        assert!(page(&gauges).iter().all(|line| line.ends_with(" 0")), "until the first reading");
        reader.begin();
        fake.round.set(5);
        reader.read(&gauges);
        let expected = [
            r#"nv_gpu_utilization{gpu_uuid="GPU-a"} 0.3"#,
            r#"nv_gpu_utilization{gpu_uuid="GPU-b"} 0.4"#,
            r#"nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 1073741829"#,
            r#"nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 1073741839"#,
            r#"nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1048581"#,
            r#"nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 1048591"#,
            r#"nv_gpu_power_usage{gpu_uuid="GPU-a"} 70.505"#,
            r#"nv_gpu_power_usage{gpu_uuid="GPU-b"} 70.515"#,
            r#"nv_gpu_power_limit{gpu_uuid="GPU-a"} 300.005"#,
            r#"nv_gpu_power_limit{gpu_uuid="GPU-b"} 300.015"#,
            r#"nv_energy_consumption{gpu_uuid="GPU-a"} 0.005"#,
            r#"nv_energy_consumption{gpu_uuid="GPU-b"} 0.005"#,
        ];
        assert_eq!(page(&gauges), expected);
        let mut exposition = Exposition::default();
        gauges.render(&mut exposition);
        let text = exposition.into_text();
        assert!(text.contains("# TYPE nv_energy_consumption counter\n") && text.matches("# TYPE").count() == 6);
    }

    /// contract/metrics.md section 2: three failures in a row, of one field of one device.
    #[test]
    fn a_field_that_fails_three_times_in_a_row_is_given_up() {
        let fake = Fake::default();
        let (mut reader, gauges) = GpuReader::new(&fake).unwrap();
        reader.begin();
        let mut fail = |times: usize, fails: bool| {
            match fails {
                true => fake.failing.borrow_mut().insert((1, Field::PowerUsage as u8)),
                false => fake.failing.borrow_mut().remove(&(1, Field::PowerUsage as u8)),
            };
            (0..times).for_each(|_| reader.read(&gauges));
            page(&gauges).into_iter().filter(|line| line.starts_with("nv_gpu_power_usage")).collect::<Vec<_>>()
        };
        let both = [r#"nv_gpu_power_usage{gpu_uuid="GPU-a"} 70.5"#, r#"nv_gpu_power_usage{gpu_uuid="GPU-b"} 70.51"#];
        assert_eq!(fail(1, false), both);
        assert_eq!(fail(2, true), both, "the former value stands");
        assert_eq!(fail(1, false), both, "and counting begins anew");
        assert_eq!(fail(2, true), both);
        assert_eq!(fail(1, true), both[..1]);
        let before = fake.reads.get();
        assert_eq!(fail(1, false), both[..1], "it stays away");
        assert_eq!(fake.reads.get(), before + 11, "and is not read");
        assert_eq!(page(&gauges).len(), 11);
    }

    #[test]
    fn a_host_without_devices_has_no_families() {
        struct None;
        impl Devices for None {
            fn uuids(&self) -> Vec<String> {
                Vec::new()
            }
            fn read(&self, _device: usize, _field: Field) -> Result<u64, String> {
                Err(String::new())
            }
        }
        assert!(GpuReader::new(None).is_none());
        assert!(page(&GpuGauges::default()).is_empty());
    }
}
