"""What several tests share: plans, laws, stores, services, and faults to plant in them."""
