"""Plugins for agents' own hosts, shipped as files: `streamguard integrations` says where they are."""
