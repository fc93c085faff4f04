"""`faults`: a day of faults on a control plane, two appliances and their lines, and an audit afterwards."""
