"""Models behind the APIs of servers: requests, and what their replies say."""
