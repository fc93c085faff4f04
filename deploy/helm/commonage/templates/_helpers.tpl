{{- define "commonage.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "commonage.labels" -}}
app.kubernetes.io/name: commonage
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "commonage.selector" -}}
app.kubernetes.io/name: commonage
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "commonage.image" -}}
{{ .Values.image.name }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "commonage.secret" -}}
{{- default (printf "%s-secrets" (include "commonage.name" .)) .Values.existingSecret -}}
{{- end -}}

{{- define "commonage.serviceAccount" -}}
{{- default (printf "%s-control" (include "commonage.name" .)) .Values.control.serviceAccount.name -}}
{{- end -}}

{{- define "commonage.host" -}}
{{ include "commonage.name" .root }}-{{ .part }}.{{ .root.Release.Namespace }}.svc.cluster.local
{{- end -}}

{{- define "commonage.workloads" -}}
{{- default (printf "%s-workloads" (default "default" .Release.Namespace)) .Values.workloads.namespace -}}
{{- end -}}

{{- /* Objects of the cluster have no namespace, so their names say whose they are. */ -}}
{{- define "commonage.clusterName" -}}
{{ default "default" .Release.Namespace }}-{{ include "commonage.name" . }}
{{- end -}}

{{- define "commonage.priorityClass" -}}
{{- default (include "commonage.clusterName" .) .Values.workloads.priorityClassName -}}
{{- end -}}

{{- define "commonage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "commonage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "commonage.env" -}}
- {name: COMMONAGE_CONFIG, value: /etc/commonage/settings/commonage.toml}
- {name: COMMONAGE_SECRETS_DIR, value: /etc/commonage/secrets}
- {name: COMMONAGE_DATA_DIR, value: /var/lib/commonage/server}
- {name: HOME, value: /tmp}
{{- end -}}

{{- define "commonage.controlDatabase" -}}
{{- if .Values.postgresql.enabled }}
- {name: PGPASSWORD, valueFrom: {secretKeyRef: {name: {{ include "commonage.secret" . }}, key: database_password}}}
- {name: COMMONAGE_DATABASE_URL, value: "postgresql://commonage:$(PGPASSWORD)@{{ include "commonage.host" (dict "root" . "part" "postgresql") }}:5432/commonage"}
{{- else }}
- {name: COMMONAGE_DATABASE_URL, valueFrom: {secretKeyRef: {name: {{ include "commonage.name" . }}-databases, key: control}}}
{{- end }}
{{- end -}}

{{- define "commonage.hubDatabase" -}}
{{- if .Values.postgresql.enabled }}
- {name: PGPASSWORD, valueFrom: {secretKeyRef: {name: {{ include "commonage.secret" . }}, key: database_password}}}
- {name: COMMONAGE_HUB_DATABASE_URL, value: "postgresql+psycopg://commonage@{{ include "commonage.host" (dict "root" . "part" "postgresql") }}:5432/jupyterhub"}
{{- else }}
{{- if .Values.hub.db.password }}
- {name: PGPASSWORD, valueFrom: {secretKeyRef: {name: {{ include "commonage.name" . }}-databases, key: hub_password}}}
{{- end }}
- {name: COMMONAGE_HUB_DATABASE_URL, valueFrom: {secretKeyRef: {name: {{ include "commonage.name" . }}-databases, key: hub}}}
{{- end }}
{{- end -}}

{{- define "commonage.extraEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  {{- toYaml $value | nindent 2 }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "commonage.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}
