"""RoundTrips: how long a question and its answer take on the way."""

from headgate.sharing.pool.trips import RoundTrips

MS = 1_000_000


def test_the_trip_in_which_the_connection_was_made_counts_until_another_one_was_measured():
    trips = RoundTrips()
    trips.note(800 * MS, connecting=True)
    assert trips.typical == 800 * MS
    trips.note(2 * MS)
    assert trips.typical == 2 * MS
    trips.note(6 * MS)
    assert trips.typical == 3 * MS
