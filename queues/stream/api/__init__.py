"""HTTP over the socket in a stream's folder. Who reaches the socket is this user, or root: nobody is asked for a token."""
