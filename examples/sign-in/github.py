# Members of a GitHub organisation. Register an OAuth app at GitHub (organisation, Settings, Developer settings) with the
# callback https://hub.example.org/hub/oauth_callback. Use with: authenticator_class = "github"
c.GitHubOAuthenticator.client_id = "..."
c.GitHubOAuthenticator.client_secret = "..."
c.GitHubOAuthenticator.scope = ["read:org"]  # to see private memberships and teams
c.GitHubOAuthenticator.allowed_organizations = {"our-lab", "partners:gpu"}  # an organisation, and a team of another one
c.Authenticator.admin_users = {"octocat"}

# Teams become JupyterHub groups, called `organisation:team`. A tenant of that name belongs to the team.
c.GitHubOAuthenticator.populate_teams_in_auth_state = True
c.Authenticator.manage_groups = True
c.GitHubOAuthenticator.auth_state_groups_key = lambda state: [
    f"{team['organization']['login']}:{team['slug']}" for team in state["teams"]
]
