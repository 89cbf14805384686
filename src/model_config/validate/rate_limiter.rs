//! Row "rate limiter": checks the resources that instances require against each other and against the limits.
//!
//! Runs only where the rate limiter is on; otherwise resources are not counted.

use std::collections::BTreeMap;

use super::super::Error;
use nereid_wire::inference::ModelInstanceGroup;

/// How much there is of a resource (`--rate-limit-resource`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimit {
    pub name: String,
    pub count: u64,
    /// `None`: on each device.
    pub device: Option<i32>,
}

/// The device on which an instance without a GPU counts its resources.
const CPU_DEVICE: i32 = 0;

/// Checks the instance groups of all loaded models against the limits. Without any limit the amount of a resource is
/// the largest requirement of an instance.
pub fn rate_limits<'a>(
    groups: impl IntoIterator<Item = &'a ModelInstanceGroup>,
    limits: &[ResourceLimit],
) -> Result<(), Error> {
    // The largest requirement of an instance, by resource and device; `None` is the device of global resources.
    let mut required: BTreeMap<(Option<i32>, &str), u32> = BTreeMap::new();
    for group in groups {
        let devices = if group.gpus.is_empty() { &[CPU_DEVICE][..] } else { &group.gpus };
        for resource in group.rate_limiter.iter().flat_map(|limiter| &limiter.resources) {
            let devices: Vec<Option<i32>> =
                if resource.global { vec![None] } else { devices.iter().copied().map(Some).collect() };
            for device in devices {
                let most = required.entry((device, &resource.name)).or_default();
                *most = resource.count.max(*most);
            }
        }
    }
    for (&(device, name), &most) in &required {
        if let Some(limit) = limit(limits, name, device)
            && limit < u64::from(most)
        {
            return Err(Error::invalid(format!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more \
                 model instances, the minimum required count is {most}"
            )));
        }
    }
    for (_, name) in required.keys().filter(|(device, _)| device.is_none()) {
        if required.keys().any(|(device, other)| other == name && device.is_some()) {
            return Err(Error::invalid(format!(
                "Resource \"{name}\" is present as both global and device-specific resource in the model \
                 configuration."
            )));
        }
    }
    Ok(())
}

/// The amount of a resource for instances on `device`; `None`: as much as they require. If there are any limits, a
/// resource without one has the amount 0. Of the limits for the device and for each device the largest counts; for a
/// global resource the device of a limit is ignored.
pub fn limit(limits: &[ResourceLimit], name: &str, device: Option<i32>) -> Option<u64> {
    if limits.is_empty() {
        return None;
    }
    let is_for = |limit: &&ResourceLimit| device.is_none() || limit.device.is_none() || limit.device == device;
    let fitting = limits.iter().filter(|limit| limit.name == name).filter(is_for);
    Some(fitting.map(|limit| limit.count).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::super::{from_dynamic, parse};
    use super::*;

    fn limited(groups: &str, limits: &[(&str, u64, Option<i32>)]) -> Result<(), String> {
        let document = parse("c", groups.as_bytes()).unwrap();
        let limits: Vec<ResourceLimit> = limits
            .iter()
            .map(|(name, count, device)| ResourceLimit { name: (*name).to_owned(), count: *count, device: *device })
            .collect();
        let config = from_dynamic(&document.message).unwrap();
        rate_limits(&config.instance_group, &limits).map_err(|error| error.to_string())
    }

    const ASKS: &str = "instance_group [
        { rate_limiter { resources [ { name: \"R\" count: 4 }, { name: \"G\" global: true count: 2 } ] } },
        { gpus: [ 1, 2 ] rate_limiter { resources [ { name: \"R\" count: 10 } ] } },
        { }
    ]";

    #[test]
    fn required_resources_must_exist() {
        let refused = |name: &str, limit: u64, most: u64| {
            Err(format!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more \
                 model instances, the minimum required count is {most}"
            ))
        };
        /// Name, count, device.
        type Limits<'a> = &'a [(&'a str, u64, Option<i32>)];
        let g = ("G", 2, None);
        let cases: [(Limits<'_>, Result<(), String>); 12] = [
            (&[], Ok(())),
            (&[g, ("R", 10, None)], Ok(())),
            (&[g, ("R", 9, None)], refused("R", 9, 10)),
            (&[g, ("R", 4, None), ("R", 10, Some(1)), ("R", 10, Some(2))], Ok(())),
            // The larger one counts.
            (&[g, ("R", 10, None), ("R", 3, Some(0))], Ok(())),
            (&[("R", 10, None), ("G", 1, Some(0)), ("G", 2, Some(1))], Ok(())),
            (&[("R", 10, None), ("G", 1, None)], refused("G", 1, 2)),
            // A resource without a matching limit has the amount 0.
            (&[("other", 9, None)], refused("G", 0, 2)),
            (&[g], refused("R", 0, 4)),
            (&[g, ("R", 10, Some(10))], refused("R", 0, 4)),
            (&[g, ("R", 10, Some(1)), ("R", 10, Some(2))], refused("R", 0, 4)),
            (&[g, ("R", 10, Some(0)), ("R", 10, Some(1))], refused("R", 0, 10)),
        ];
        for (limits, expected) in cases {
            assert_eq!(limited(ASKS, limits), expected, "{limits:?}");
        }
    }

    #[test]
    fn a_resource_is_global_or_is_not() {
        let groups = "instance_group { rate_limiter { resources [ { name: \"R\" global: true }, { name: \"R\" } ] } }";
        let expected =
            "Resource \"R\" is present as both global and device-specific resource in the model configuration.";
        assert_eq!(limited(groups, &[]), Err(expected.to_owned()));
    }
}
