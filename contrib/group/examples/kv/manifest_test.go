package main

import (
	"bytes"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestManifest: the manifest has no field that Kubernetes does not know, its parts fit each other, and its flags are those of kv.
func TestManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("kv.yaml")
	require.NoError(t, err)
	docs := bytes.Split(text, []byte("\n---\n"))
	require.Len(t, docs, 2)
	var service core.Service
	var set apps.StatefulSet
	require.NoError(t, yaml.UnmarshalStrict(docs[0], &service))
	require.NoError(t, yaml.UnmarshalStrict(docs[1], &set))
	require.Equal(t, "v1 Service", service.APIVersion+" "+service.Kind)
	require.Equal(t, "apps/v1 StatefulSet", set.APIVersion+" "+set.Kind)
	require.Equal(t, core.ClusterIPNone, service.Spec.ClusterIP)
	require.True(t, service.Spec.PublishNotReadyAddresses)
	require.Equal(t, service.Name, set.Spec.ServiceName)
	pod := set.Spec.Template
	require.Equal(t, set.Spec.Selector.MatchLabels, pod.Labels)
	require.Equal(t, service.Spec.Selector, pod.Labels)

	c := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for i, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
		require.Equal(t, service.Spec.Ports[i].Port, p.ContainerPort, p.Name)
	}
	mounts := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		mounts[v.Name] = true
	}
	for _, v := range set.Spec.VolumeClaimTemplates {
		mounts[v.Name] = true
	}
	paths := ""
	for _, m := range c.VolumeMounts {
		require.True(t, mounts[m.Name], m.Name)
		paths += m.MountPath + " "
	}
	env := strings.NewReplacer("$(POD_NAME)", "kv-2", "$(POD_IP)", "10.0.0.7")
	var cfg config
	flags := flag.NewFlagSet("kv", flag.ContinueOnError)
	cfg.flags(flags)
	var args []string
	for _, a := range c.Args {
		args = append(args, env.Replace(a))
	}
	require.NoError(t, flags.Parse(args))
	require.EqualValues(t, *set.Spec.Replicas, cfg.size)
	require.Equal(t, "kv-2", cfg.name)
	require.Equal(t, "kv", set.Name, "the pods are kv-0 to kv-4")
	require.Equal(t, service.Name+":"+strconv.Itoa(int(ports["gossip"])), cfg.seeds)
	require.True(t, strings.HasSuffix(cfg.listen, ":"+strconv.Itoa(int(ports["kv"]))))
	require.True(t, strings.HasSuffix(cfg.web, ":"+strconv.Itoa(int(ports["web"]))))
	for _, p := range []string{cfg.dir, cfg.key[:7], cfg.ca[:7]} {
		require.Contains(t, paths, p)
	}
	require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path)
	require.Greater(t, *pod.Spec.TerminationGracePeriodSeconds, int64(10), "Grace and the farewell take up to 10 s")
}
