# A directory: OpenLDAP, FreeIPA, Active Directory. Use with: authenticator_class = "ldap"
c.LDAPAuthenticator.server_address = "ldap.example.org"
c.LDAPAuthenticator.tls_strategy = "before_bind"  # StartTLS; "on_connect" for port 636
c.LDAPAuthenticator.bind_dn_template = ["uid={username},ou=people,dc=example,dc=org"]

# Members of these groups may sign in. With manage_groups, they are also JupyterHub groups, called by their first part
# in lower case: gpu-users. A tenant of the same name belongs to the group. Other groups of the directory do not count.
c.LDAPAuthenticator.allowed_groups = ["cn=gpu-users,ou=groups,dc=example,dc=org"]
c.LDAPAuthenticator.group_search_filter = "(member={userdn})"
c.LDAPAuthenticator.group_attributes = ["member"]
c.Authenticator.manage_groups = True
c.Authenticator.admin_users = {"ada"}
