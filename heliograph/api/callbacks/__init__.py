"""The doors for callbacks from Meta and from suppliers: verified and stored, processed later."""
