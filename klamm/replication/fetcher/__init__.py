"""The work of followers: tasks that fetch from leaders, truncate diverging logs, and obey throttles."""
