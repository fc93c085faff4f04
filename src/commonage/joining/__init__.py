"""How a machine is let in: the token it shows, the script that begins on it, what it is told, the door it knocks at.

`terms`, `fetch` and `join.sh` go to the machine and need nothing but the standard library; what is done there is
`commonage.agent.join`'s. `tokens`, `office` and `door` are the control plane's side.
"""
