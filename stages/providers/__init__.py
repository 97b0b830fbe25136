"""One file a provider client, and the pure parts they share. Above this package no foreign error is seen."""
