"""`headgate demo`: the same jobs sent four ways, side by side, with a table and plots at the end."""
