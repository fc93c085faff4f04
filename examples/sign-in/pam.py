# The Unix accounts of the machine, also those of SSSD. Use with: authenticator_class = "pam"
# Only root can check the passwords of others: start the server as root.
c.PAMAuthenticator.service = "login"  # a file in /etc/pam.d
c.PAMAuthenticator.allowed_groups = {"gpu-users"}
c.PAMAuthenticator.admin_groups = {"gpu-admins"}

# Unix groups become JupyterHub groups. A tenant of the same name belongs to the group.
c.Authenticator.manage_groups = True
