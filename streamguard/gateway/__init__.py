"""The HTTP gateway: what an executor needs of streamguard, without a Kafka client. Needs the `gateway` extra.

It keeps nothing that matters: any number of instances serve the same runs, and each may go at any time.
"""

from streamguard.gateway.server import Gateway

__all__ = ["Gateway"]
