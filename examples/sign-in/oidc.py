# Any OpenID Connect provider: Keycloak, Entra ID, Authentik, Shibboleth. Register a confidential client with the callback
# https://hub.example.org/hub/oauth_callback. Use with: authenticator_class = "generic-oauth"
# The three addresses are in https://id.example.org/realms/lab/.well-known/openid-configuration
c.GenericOAuthenticator.login_service = "Example University"
c.GenericOAuthenticator.client_id = "commonage"
c.GenericOAuthenticator.client_secret = "..."
c.GenericOAuthenticator.authorize_url = "https://id.example.org/realms/lab/protocol/openid-connect/auth"
c.GenericOAuthenticator.token_url = "https://id.example.org/realms/lab/protocol/openid-connect/token"
c.GenericOAuthenticator.userdata_url = "https://id.example.org/realms/lab/protocol/openid-connect/userinfo"
c.GenericOAuthenticator.scope = ["openid", "profile", "email"]
c.GenericOAuthenticator.username_claim = "preferred_username"

# The claim `groups` becomes JupyterHub groups. A tenant of the same name belongs to the group.
c.Authenticator.manage_groups = True
c.GenericOAuthenticator.auth_state_groups_key = "oauth_user.groups"
c.GenericOAuthenticator.allowed_groups = {"gpu-users"}
c.GenericOAuthenticator.admin_groups = {"gpu-admins"}
