"""The other end of the API: finds a server and its token, asks, and gives wire types or a FairwayError."""
