"""Money: plans and quota, wallets, rates and margins of all organizations, and the monthly billing export."""
