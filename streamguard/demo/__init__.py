"""What `streamguard demo` needs to show the guard at work without a Kafka: above all, a broker of its own."""
