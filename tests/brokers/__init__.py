"""The brokers that stream tests run on: a given one, Apache Kafka from Maven Central or in Docker, the embedded one."""
