"""A model's configuration, as auto_complete_config completes it."""

import json

_PLACE = "in auto-complete-config function for model '%s'"


class ModelConfig:
    """A configuration under completion (contract/python_backend.md section 3, "ModelConfig"). Errors are
    ValueErrors."""

    def __init__(self, model_config):
        # The server sends its text.
        self._model_config = json.loads(model_config) if isinstance(model_config, str) else model_config

    def as_dict(self):
        return self._model_config

    def set_max_batch_size(self, max_batch_size):
        config = self._model_config
        present = config["max_batch_size"]
        if present > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size %s, but in auto-complete-config function for model '%s' "
                "specified max_batch_size %s" % (present, config["name"], max_batch_size)
            )
        config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        config = self._model_config
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '%s', but auto-complete-config function for model "
                    "'%s' tries to set scheduling_choice as 'dynamic_batching'" % (choice, config["name"])
                )
        config.setdefault("dynamic_batching", {})

    def add_input(self, input):
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output):
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict):
        config = self._model_config
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    "model transaction property %s contains property other than 'decoupled'."
                    % (_PLACE % config["name"])
                )
        present = config.get("model_transaction_policy") or {}
        if "decoupled" not in transaction_policy_dict:
            config.setdefault("model_transaction_policy", {})
            return
        decoupled = transaction_policy_dict["decoupled"]
        if present and "decoupled" in present and present["decoupled"] != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model '%s', which is already set to "
                "'%s'." % (config["name"], present["decoupled"])
            )
        config["model_transaction_policy"] = dict(present, decoupled=decoupled)

    def _add(self, side, tensor, known):
        """Adds a tensor to a side, or fills what the one of that name leaves open."""
        config = self._model_config
        model = config["name"]
        name = tensor.get("name")
        for key in tensor:
            if key not in known:
                others = ", ".join("'%s'" % other for other in known[:-1])
                raise ValueError(
                    "%s '%s' %s contains property other than %s and '%s'."
                    % (side, name, _PLACE % model, others, known[-1])
                )
        if "name" not in tensor:
            raise ValueError("%s %s is missing 'name' property." % (side, _PLACE % model))
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError("%s '%s' %s is missing '%s' property." % (side, name, _PLACE % model, key))
        tensors = config.setdefault(side, [])
        for present in tensors:
            if present.get("name") == name:
                self._fill(side, present, tensor)
                return
        tensors.append(tensor)

    def _fill(self, side, present, tensor):
        model, name = self._model_config["name"], tensor["name"]
        data_type = present.get("data_type", "TYPE_INVALID")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s"
                % (model, data_type, side, name, tensor["data_type"])
            )
        for key in ("dims", "optional"):
            if key not in tensor or key not in present or (key == "dims" and not present[key]):
                continue
            if present[key] != tensor[key]:
                raise ValueError(
                    "model '%s', tensor '%s': the model expects %s %s but the model configuration specifies %s %s"
                    % (model, name, key, tensor[key], key, present[key])
                )
        present.update(tensor)
