{{- define "ebbtide.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "ebbtide.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "ebbtide.selector" -}}
app.kubernetes.io/name: ebbtide
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: master
{{- end -}}

{{- define "ebbtide.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: ebbtide
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "ebbtide.priorityClass" -}}
{{- .Values.priorityClass.name | default (printf "%s-pilots" (include "ebbtide.name" .)) -}}
{{- end -}}

{{- /* A value as TOML has it, within a line. */ -}}
{{- define "ebbtide.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ $key | toJson }} = {{ include "ebbtide.toml" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{- range $i, $one := . }}{{ if $i }}, {{ end }}{{ include "ebbtide.toml" $one }}{{ end -}}]
{{- else if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}

{{- define "ebbtide.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "ebbtide.mounts" -}}
- {name: state, mountPath: /var/lib/ebbtide}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /etc/passwd, subPath: passwd, readOnly: true}
- {name: config, mountPath: /etc/group, subPath: group, readOnly: true}
{{- end -}}
