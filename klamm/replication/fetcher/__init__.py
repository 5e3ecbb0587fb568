"""The followers' side: tasks that fetch from leaders, truncate where logs differ, and keep to throttles."""
