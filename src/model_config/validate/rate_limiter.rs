//! Row "rate limiter": the resources that instances ask for, held against each other and against what there is.
//!
//! Asked only where the rate limiter is on; otherwise nobody counts.

use std::collections::BTreeMap;

use super::super::Error;
use crate::wire::inference::ModelInstanceGroup;

/// How much there is of a resource (`--rate-limit-resource`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceLimit {
    pub name: String,
    pub count: u64,
    /// `None`: on each device.
    pub device: Option<i32>,
}

/// Where an instance without a GPU counts its resources.
const CPU_DEVICE: i32 = 0;

/// Holds the instance groups of all models that are loaded against the limits. A resource without a limit has as much
/// as the instance that asks for most of it.
pub fn rate_limits<'a>(
    groups: impl IntoIterator<Item = &'a ModelInstanceGroup>,
    limits: &[ResourceLimit],
) -> Result<(), Error> {
    // The most that one instance asks for, by resource and device; none is the device of global ones.
    let mut required: BTreeMap<(&str, Option<i32>), u32> = BTreeMap::new();
    for group in groups {
        let devices = if group.gpus.is_empty() { &[CPU_DEVICE][..] } else { &group.gpus };
        for resource in group.rate_limiter.iter().flat_map(|limiter| &limiter.resources) {
            let devices: Vec<Option<i32>> =
                if resource.global { vec![None] } else { devices.iter().copied().map(Some).collect() };
            for device in devices {
                let most = required.entry((&resource.name, device)).or_default();
                *most = resource.count.max(*most);
            }
        }
    }
    for (name, _) in required.keys().filter(|(_, device)| device.is_none()) {
        if required.keys().any(|(other, device)| other == name && device.is_some()) {
            return Err(Error::invalid(format!(
                "Resource \"{name}\" is present as both global and device-specific resource in the model \
                 configuration."
            )));
        }
    }
    for ((name, device), most) in required {
        if let Some(limit) = limit(limits, name, device)
            && limit < u64::from(most)
        {
            return Err(Error::invalid(format!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more \
                 model instances, the minimum required count is {most}"
            )));
        }
    }
    Ok(())
}

/// How much there is for instances on `device`. For a global resource the device of a limit says nothing: the largest
/// one counts. Otherwise the device's own limit outweighs that of each device.
pub fn limit(limits: &[ResourceLimit], name: &str, device: Option<i32>) -> Option<u64> {
    let mut fitting = limits.iter().filter(|limit| limit.name == name);
    if device.is_none() {
        return fitting.map(|limit| limit.count).max();
    }
    let own = fitting.clone().find(|limit| limit.device == device);
    own.or_else(|| fitting.find(|limit| limit.device.is_none())).map(|limit| limit.count)
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
    fn what_instances_ask_for_must_be_there() {
        let refused = |name: &str, limit: u64, most: u64| {
            Err(format!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more \
                 model instances, the minimum required count is {most}"
            ))
        };
        /// Name, count, device.
        type Limits<'a> = &'a [(&'a str, u64, Option<i32>)];
        let cases: [(Limits<'_>, Result<(), String>); 8] = [
            (&[], Ok(())),
            (&[("other", 0, None)], Ok(())),
            (&[("R", 10, None)], Ok(())),
            (&[("R", 9, None)], refused("R", 9, 10)),
            (&[("R", 4, None), ("R", 10, Some(1)), ("R", 10, Some(2))], Ok(())),
            (&[("R", 10, None), ("R", 3, Some(0))], refused("R", 3, 4)),
            (&[("G", 1, Some(0)), ("G", 2, Some(1))], Ok(())),
            (&[("G", 1, None)], refused("G", 1, 2)),
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
