{{/* The name of everything. It is fixed: one controller runs in a cluster, and its Lease and its record have this name, too. */}}
{{- define "cloudmap-mcs.name" -}}
cloudmap-mcs
{{- end }}

{{/* The labels of all objects; pods are selected by the name alone. */}}
{{- define "cloudmap-mcs.labels" -}}
app.kubernetes.io/part-of: {{ include "cloudmap-mcs.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "cloudmap-mcs.selector" -}}
app.kubernetes.io/name: {{ include "cloudmap-mcs.name" . }}
{{- end }}

{{- define "cloudmap-mcs.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The port of probes and metrics: --listen has it. */}}
{{- define "cloudmap-mcs.port" -}}
{{ .Values.config.listen | default "[::]:8080" | splitList ":" | last }}
{{- end }}

{{/*
Flags as their environment variables: ledgerTick is CLOUDMAP_MCS_LEDGER_TICK. Lists are joined with commas, and what has fields is
JSON.
*/}}
{{- define "cloudmap-mcs.environment" -}}
{{- range $flag, $value := .Values.config }}
CLOUDMAP_MCS_{{ $flag | snakecase | upper }}: {{ if kindIs "map" $value }}{{ toJson $value | quote }}{{ else }}{{ kindIs "slice" $value | ternary (join "," $value) (toString $value) | quote }}{{ end }}
{{- end }}
{{- end }}

{{/*
An object of a file of config/, for this release: its labels, its namespace, its service account.
Takes a list: the chart's context and the file's text of the object.
*/}}
{{- define "cloudmap-mcs.object" -}}
{{- $chart := index . 0 }}
{{- $object := index . 1 | fromYaml }}
{{- $metadata := $object.metadata }}
{{- $_ := set $metadata "labels" (merge (include "cloudmap-mcs.labels" $chart | fromYaml) (dig "labels" dict $metadata)) }}
{{- if hasKey $metadata "namespace" }}
{{- $_ := set $metadata "namespace" $chart.Release.Namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "name" $chart.Values.serviceAccount.name }}
{{- $_ := set . "namespace" $chart.Release.Namespace }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{/* Values that only together are wrong, which the schema cannot say: the controller would not start, or would belong to nobody. */}}
{{- define "cloudmap-mcs.check" -}}
{{- $config := .Values.config }}
{{- range $name := list "clusterId" "clustersetId" }}
{{- $property := index $.Values.clusterProperties $name }}
{{- $flag := get $config $name }}
{{- if and $property $flag (ne $property $flag) }}
{{- fail (printf "clusterProperties.%s is %q and config.%s is %q: the controller does not start with ids that differ. Set only clusterProperties.%s" $name $property $name $flag $name) }}
{{- end }}
{{- end }}
{{- if and $config.awsMcsCompat $config.instancesNamespace }}
{{- fail "config.awsMcsCompat and config.instancesNamespace exclude each other: set only one of them" }}
{{- end }}
{{- if and $config.assumeRoleExternalId (not $config.assumeRoleArn) }}
{{- fail "config.assumeRoleExternalId is for config.assumeRoleArn: set that, too" }}
{{- end }}
{{- if and $config.pageListen (eq ($config.pageListen | splitList ":" | last) (include "cloudmap-mcs.port" .)) }}
{{- fail "config.pageListen has the port of config.listen: give it another one" }}
{{- end }}
{{- end }}
