"""Notifications: from the event stream to commands and webhooks, by way of the outbox."""
