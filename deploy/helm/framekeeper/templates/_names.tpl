{{- define "framekeeper.labels" -}}
app.kubernetes.io/name: framekeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "framekeeper.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "framekeeper.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "framekeeper.database" -}}
- name: FRAMEKEEPER_DATABASE_URL
  value: {{ .Values.database.url | quote }}
- name: FRAMEKEEPER_DATABASE_PASSWORD_FILE
  value: /srv/framekeeper/var/secrets/{{ .Values.database.passwordKey }}
- name: FRAMEKEEPER_LOG_FORMAT
  value: json
{{- end }}
