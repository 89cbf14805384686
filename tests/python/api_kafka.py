"""A program between two topics of Kafka, with modules in place of the broker's client.

For the package of the wheel. Arguments: names of cases, or none for all. It makes the calls of NVIDIA's example for
Kafka: each message is sent to a model, and what the response and its model hold goes out as JSON.
"""

import concurrent.futures
import json
import os
import queue
import sys
import types

import numpy
import tritonserver
from api_support import repository
from cases import case, run


class Record:
    def __init__(self, text):
        self.text = text

    def error(self):
        return None

    def value(self):
        return self.text.encode()


class Consumer:
    """A topic that holds some messages and then no more."""

    def __init__(self, configuration):
        assert configuration["group.id"] == "nereid", configuration
        self.records = queue.SimpleQueue()

    def subscribe(self, topics):
        assert topics == ["in"], topics
        for text in ["first", "zweite: ä", ""]:
            self.records.put(Record(text))

    def poll(self, timeout):
        try:
            return self.records.get_nowait()
        except queue.Empty:
            return None

    def close(self):
        pass


class Producer:
    sent: list = []

    def __init__(self, configuration):
        assert configuration["client.id"] == "nereid", configuration

    def produce(self, topic, value):
        assert topic == "out", topic
        self.sent.append(value)

    def flush(self):
        pass


class Arrays(json.JSONEncoder):
    def default(self, value):
        if isinstance(value, tritonserver.Tensor):
            return value.to_string_array()
        if isinstance(value, tritonserver._c.triton_bindings.TRITONSERVER_DataType):
            return value.name
        if isinstance(value, numpy.ndarray):
            return value.tolist()
        return super().default(value)


class Service:
    """A consumer, a pool of threads that call the model, and a producer, by the variables of the environment."""

    def __init__(self, kafka):
        get = os.environ.__getitem__
        self.name, self.input, self.topic = get("MODEL_NAME"), get("MODEL_INPUT_NAME"), get("PRODUCER_TOPIC")
        control = tritonserver.ModelControlMode.EXPLICIT
        quiet = {"log_info": True, "metrics": False, "gpu_metrics": False, "cpu_metrics": False}
        self.server = tritonserver.Server(model_repository=get("MODEL_REPOSITORY"), model_control_mode=control, **quiet)
        self.server.start(wait_until_ready=True)
        self.was_ready = self.server.model(self.name).ready()
        self.model = self.server.model(self.name) if self.was_ready else self.server.load(self.name)
        self.consumer = kafka.Consumer(json.loads(get("CONSUMER_CONFIGS")))
        self.producer = kafka.Producer(json.loads(get("PRODUCER_CONFIGS")))
        self.consumer.subscribe(get("CONSUMER_TOPICS").split(","))
        self.workers = concurrent.futures.ThreadPoolExecutor(int(get("KAFKA_CONSUMER_MAX_WORKER_THREADS")))

    def serve(self):
        while (record := self.consumer.poll(1.0)) is not None:
            self.workers.submit(self.answer, record).result()
        self.producer.flush()
        self.consumer.close()
        self.server.stop()

    def answer(self, record):
        text = record.value().decode()
        for response in self.model.infer(inputs={self.input: numpy.array([text])}):
            fields = response.__dict__
            model = dict(fields["model"].__dict__)
            del model["_server"]
            self.producer.produce(self.topic, json.dumps({**fields, "model": model}, cls=Arrays))


@case
def responses_and_models_are_dictionaries_that_json_takes():
    kafka = types.ModuleType("confluent_kafka")
    kafka.Consumer, kafka.Producer = Consumer, Producer
    folder = repository()
    os.environ.update(
        KAFKA_CONSUMER_MAX_WORKER_THREADS="2",
        CONSUMER_CONFIGS='{"bootstrap.servers": "127.0.0.1:9092", "group.id": "nereid"}',
        PRODUCER_CONFIGS='{"bootstrap.servers": "127.0.0.1:9092", "client.id": "nereid"}',
        CONSUMER_TOPICS="in",
        PRODUCER_TOPIC="out",
        MODEL_NAME="words",
        MODEL_INPUT_NAME="WORDS",
        MODEL_REPOSITORY=folder.name,
    )
    service = Service(kafka)
    assert service.was_ready is False
    service.serve()
    sent = [json.loads(value) for value in Producer.sent]
    assert [list(one["outputs"]["WORDS"]) for one in sent] == [["first"], ["zweite: ä"], [""]], sent
    for one in sent:
        fields = ["model", "request_id", "parameters", "outputs", "error", "classification_label", "final"]
        assert list(one) == fields, list(one)
        assert one["model"] == {"name": "words", "version": 1, "state": None, "reason": None}, one
        assert one["error"] is None and one["final"] is True, one


if __name__ == "__main__":
    run(sys.argv[1:])
