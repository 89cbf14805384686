"""ModelConfig: what auto_complete_config may do, and every text of what it may not."""

import json
import unittest

import fake  # noqa: F401

import triton_python_backend_utils as pb_utils

PLACE = "in auto-complete-config function for model 'm'"


def config(**changes):
    made = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    made.update(changes)
    return pb_utils.ModelConfig(made)


class Config(unittest.TestCase):
    def refuse(self, text, call, *arguments):
        with self.assertRaises(ValueError) as caught:
            call(*arguments)
        self.assertEqual(str(caught.exception), text)

    def test_the_dictionary_itself(self):
        given = {"name": "m"}
        self.assertIs(pb_utils.ModelConfig(given).as_dict(), given)
        self.assertEqual(pb_utils.ModelConfig(json.dumps(given)).as_dict(), given)

    def test_max_batch_size(self):
        for old, new in ((0, 4), (4, 4), (4, 9)):
            made = config(max_batch_size=old)
            made.set_max_batch_size(new)
            self.assertEqual(made.as_dict()["max_batch_size"], new)
        text = "configuration specified max_batch_size 9, but in auto-complete-config function for model 'm' specified "
        self.refuse(text + "max_batch_size 4", config(max_batch_size=9).set_max_batch_size, 4)

    def test_dynamic_batching(self):
        made = config()
        made.set_dynamic_batching()
        self.assertEqual(made.as_dict()["dynamic_batching"], {})
        made = config(dynamic_batching={"preferred_batch_size": [2]})
        made.set_dynamic_batching()
        self.assertEqual(made.as_dict()["dynamic_batching"], {"preferred_batch_size": [2]})
        for choice in ("sequence_batching", "ensemble_scheduling"):
            text = "Configuration specified scheduling_choice as '%s', but auto-complete-config function for model 'm' "
            text += "tries to set scheduling_choice as 'dynamic_batching'"
            self.refuse(text % choice, config(**{choice: {}}).set_dynamic_batching)

    def test_new_tensors(self):
        made = config()
        made.add_input({"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        made.add_output({"name": "b", "data_type": "TYPE_STRING", "dims": [-1]})
        self.assertEqual([one["name"] for one in made.as_dict()["input"]], ["a"])
        self.assertEqual(made.as_dict()["output"], [{"name": "b", "data_type": "TYPE_STRING", "dims": [-1]}])
        bare = pb_utils.ModelConfig({"name": "m"})
        bare.add_input({"name": "a", "data_type": "TYPE_FP32", "dims": [4]})
        self.assertEqual(len(bare.as_dict()["input"]), 1)

    def test_blanks_are_filled(self):
        for present in (
            {"name": "a"},
            {"name": "a", "data_type": "TYPE_INVALID", "dims": []},
            {"name": "a", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "x"},
        ):
            made = config(input=[dict(present)], output=[dict(present)])
            for add, side in ((made.add_input, "input"), (made.add_output, "output")):
                add({"name": "a", "data_type": "TYPE_FP32", "dims": [4]})
                self.assertEqual(made.as_dict()[side], [dict(present, data_type="TYPE_FP32", dims=[4])])

    def test_what_tensors_lack(self):
        full = {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}
        for side, known in (("input", "'name', 'data_type', 'dims' and 'optional'"), ("output", "'name', 'data_type' and 'dims'")):
            made = config()
            add = getattr(made, "add_" + side)
            self.refuse("%s 'a' %s contains property other than %s." % (side, PLACE, known), add, dict(full, x=1))
            if side == "output":
                text = "output 'a' %s contains property other than %s."
                self.refuse(text % (PLACE, known), add, dict(full, optional=True))
            self.refuse("%s %s is missing 'name' property." % (side, PLACE), add, {"data_type": "TYPE_FP32", "dims": []})
            for key in ("data_type", "dims"):
                lacking = {name: value for name, value in full.items() if name != key}
                self.refuse("%s 'a' %s is missing '%s' property." % (side, PLACE, key), add, lacking)
            self.assertEqual(made.as_dict()[side], [])

    def test_clashes(self):
        present = {"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": False}
        new = {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}
        for side in ("input", "output"):
            made = config(**{side: [dict(present)]})
            add = getattr(made, "add_" + side)
            text = "unable to load model 'm', configuration expects datatype TYPE_FP32 for %s 'a', model provides TYPE_INT8"
            self.refuse(text % side, add, dict(new, data_type="TYPE_INT8"))
            text = "model 'm', tensor 'a': the model expects dims [5] but the model configuration specifies dims [4]"
            self.refuse(text, add, dict(new, dims=[5]))
            if side == "input":
                text = "model 'm', tensor 'a': the model expects optional True but the model configuration specifies "
                self.refuse(text + "optional False", add, dict(new, optional=True))
            self.assertEqual(made.as_dict()[side], [present])

    def test_transaction_policy(self):
        made = config()
        made.set_model_transaction_policy({})
        self.assertEqual(made.as_dict()["model_transaction_policy"], {})
        for decoupled in (True, False):
            made = config()
            for _ in range(2):
                made.set_model_transaction_policy({"decoupled": decoupled})
            self.assertEqual(made.as_dict()["model_transaction_policy"], {"decoupled": decoupled})
            text = "trying to change decoupled property in auto-complete-config for model 'm', which is already set to '%s'."
            self.refuse(text % decoupled, made.set_model_transaction_policy, {"decoupled": not decoupled})
        text = "model transaction property %s contains property other than 'decoupled'." % PLACE
        self.refuse(text, config().set_model_transaction_policy, {"decoupled": True, "x": 1})


if __name__ == "__main__":
    unittest.main()
