{{- define "podsandboxd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "podsandboxd.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "podsandboxd.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "podsandboxd.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "podsandboxd.selector" -}}
app.kubernetes.io/name: {{ include "podsandboxd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "podsandboxd.labels" -}}
{{ include "podsandboxd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "podsandboxd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "podsandboxd.secret" -}}
{{ default (include "podsandboxd.fullname" .) .Values.secret.existing }}
{{- end }}

{{/* Cluster-wide names carry the namespace: two releases of one name may stand side by side. */}}
{{- define "podsandboxd.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "podsandboxd.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The server's settings, by name: those of the chart, under what `settings` says. */}}
{{- define "podsandboxd.settings" -}}
driver: kubernetes
listen: 0.0.0.0:8080
store: /var/lib/podsandboxd/podsandboxd.db
key-file: /etc/podsandboxd/secret/seal.key
admin-key-file: /etc/podsandboxd/secret/admin-key
{{- if or .Values.secret.existing .Values.apiKeys }}
api-keys-file: /etc/podsandboxd/secret/api-keys
{{- end }}
namespace: {{ .Values.sandboxes.namespace }}
agent-image: {{ include "podsandboxd.image" . }}
pull-policy: {{ .Values.image.pullPolicy }}
preview-mode: {{ .Values.preview.mode }}
preview-domain: {{ .Values.preview.domain }}
preview-scheme: {{ .Values.preview.scheme }}
preview-port: {{ .Values.preview.port | default (ternary 443 80 (eq .Values.preview.scheme "https")) }}
ingress-class: {{ .Values.preview.ingressClass | quote }}
{{- if eq .Values.preview.mode "substrate" }}
{{- with .Values.preview.tlsSecret }}
preview-tls-secret: {{ . }}
{{- end }}
{{- with .Values.preview.ingressFrom }}
ingress-from: {{ toJson . | quote }}
{{- end }}
{{- end }}
{{- with .Values.sandboxes.image }}
image: {{ . }}
{{- end }}
{{- with .Values.sandboxes.runtimeClass }}
runtime-class: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
image-pull-secrets: {{ join "," . }}
{{- end }}
{{- end }}
