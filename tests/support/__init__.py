"""What several tests share: servers, stores and programs to run."""
