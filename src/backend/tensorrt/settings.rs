//! The settings of `--backend-config=tensorrt` and of a model's parameters, parsed once (contract/frameworks.md
//! section 2).

use nereid_backend::ModelContext;
use nereid_backend::parameters::parse_boolean;
use nereid_request::Status;
use nereid_wire::inference::ModelInstanceGroup;

use super::api::AllocationStrategy;

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSettings {
    /// Plans of other versions may run the code that they bring.
    pub is_version_compatible: bool,
    /// Libraries of plug-ins, separated by `;`.
    pub plugins: Option<String>,
}

impl BackendSettings {
    pub fn parse(context: &ModelContext) -> Result<BackendSettings, Status> {
        let boolean = |key| context.setting(key).map(parse_boolean).transpose().map(|value| value.unwrap_or(false));
        // Both are checked and have no effect: batches always gather their inputs, and there is no memory report.
        boolean("coalesce-request-input")?;
        if boolean("triton-backend-memory-tracker")? {
            tracing::info!("triton-backend-memory-tracker has no effect on TensorRT models");
        }
        Ok(BackendSettings {
            is_version_compatible: boolean("version-compatible")?,
            plugins: context.setting("plugins").map(str::to_owned),
        })
    }
}

/// The allocation strategy that a model's parameter names, for the instance of this name.
pub fn allocation_strategy(context: &ModelContext, instance: &str) -> Result<AllocationStrategy, Status> {
    match context.parameter("execution_context_allocation_strategy") {
        None | Some("STATIC") => Ok(AllocationStrategy::Static),
        Some("ON_PROFILE_CHANGE") => Ok(AllocationStrategy::OnProfileChange),
        Some(value) => Err(Status::invalid(format!(
            "Invalid value for 'execution_context_allocation_strategy': '{value}' for model instance '{instance}'. \
             Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
        ))),
    }
}

/// Refuses engines that are spread over several devices.
pub fn check_multi_device(context: &ModelContext) -> Result<(), Status> {
    let is_on = |value: &str| value == "1" || value.eq_ignore_ascii_case("true");
    match context.parameter("enable_multi_device").is_some_and(is_on) {
        true => Err(Status::unsupported(format!(
            "unable to load model '{}', this server does not run TensorRT engines on several devices: remove the \
             parameter 'enable_multi_device'",
            context.name
        ))),
        false => Ok(()),
    }
}

/// A profile that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedProfile {
    pub name: String,
    pub index: usize,
}

/// The profiles of a group; without any, the first one, called `default`. The error is a sentence.
pub fn profiles(group: &ModelInstanceGroup) -> Result<Vec<NamedProfile>, String> {
    let mut named: Vec<NamedProfile> = Vec::new();
    for name in &group.profile {
        if name.is_empty() {
            return Err("profile name must not be empty".to_owned());
        }
        let index =
            nereid_backend::parameters::parse_integer(name).map_err(|_| format!("unable to parse '{name}': stoi"))?;
        let index = usize::try_from(index).map_err(|_| format!("unable to parse '{name}': stoi"))?;
        if named.iter().all(|known| known.index != index) {
            named.push(NamedProfile { name: name.clone(), index });
        }
    }
    if named.is_empty() {
        named.push(NamedProfile { name: "default".to_owned(), index: 0 });
    }
    Ok(named)
}

/// The core of the Deep Learning Accelerator that a group names.
pub fn dla_core(group: &ModelInstanceGroup) -> Option<i64> {
    use nereid_wire::inference::model_instance_group::secondary_device::SecondaryDeviceKind;
    let is_dla = |kind| kind == SecondaryDeviceKind::KindNvdla;
    group.secondary_devices.iter().find(|device| is_dla(device.kind())).map(|device| device.device_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures::with_parameters;
    use nereid_request::Code;

    fn group(profile: &[&str]) -> ModelInstanceGroup {
        ModelInstanceGroup { profile: profile.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
    }

    #[test]
    fn profiles_are_numbers_and_the_first_is_called_default() {
        let indices = |names: &[&str]| {
            profiles(&group(names)).map(|found| found.into_iter().map(|one| (one.name, one.index)).collect::<Vec<_>>())
        };
        assert_eq!(indices(&[]), Ok(vec![("default".to_owned(), 0)]));
        assert_eq!(indices(&["2", "0", "2"]), Ok(vec![("2".to_owned(), 2), ("0".to_owned(), 0)]));
        assert_eq!(indices(&[""]), Err("profile name must not be empty".to_owned()));
        for name in ["first", "-1"] {
            assert_eq!(indices(&[name]), Err(format!("unable to parse '{name}': stoi")));
        }
    }

    #[test]
    fn the_allocation_strategy_is_one_of_two() {
        let of = |value: &str| {
            let context = with_parameters("m".into(), &[("execution_context_allocation_strategy", value)]);
            allocation_strategy(&context, "m_0_0")
        };
        assert_eq!(allocation_strategy(&with_parameters("m".into(), &[]), "m_0_0"), Ok(AllocationStrategy::Static));
        assert_eq!(of("STATIC"), Ok(AllocationStrategy::Static));
        assert_eq!(of("ON_PROFILE_CHANGE"), Ok(AllocationStrategy::OnProfileChange));
        let error = of("static").unwrap_err();
        let text = "Invalid value for 'execution_context_allocation_strategy': 'static' for model instance 'm_0_0'. \
                    Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'.";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
    }

    #[test]
    fn settings_are_booleans_and_a_list_of_plugins() {
        let with = |settings: &[(&str, &str)]| {
            let mut context = with_parameters("m".into(), &[]);
            context.settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            BackendSettings::parse(&context)
        };
        let none = BackendSettings { is_version_compatible: false, plugins: None };
        assert_eq!(with(&[]), Ok(none.clone()));
        let given = BackendSettings { is_version_compatible: true, plugins: Some("a.so;b.so".to_owned()) };
        assert_eq!(with(&[("version-compatible", "On"), ("plugins", "a.so;b.so")]), Ok(given));
        for key in ["version-compatible", "coalesce-request-input", "triton-backend-memory-tracker"] {
            assert_eq!(with(&[(key, "maybe")]).unwrap_err().message, "failed to convert 'maybe' to boolean");
        }
        assert!(check_multi_device(&with_parameters("m".into(), &[("enable_multi_device", "0")])).is_ok());
        let refused = check_multi_device(&with_parameters("m".into(), &[("enable_multi_device", "True")])).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
    }
}
