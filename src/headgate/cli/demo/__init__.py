"""`headgate demo`: the same jobs sent three ways, side by side, with a table and plots at the end."""
