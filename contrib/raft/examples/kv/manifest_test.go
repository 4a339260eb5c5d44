package main

import (
	"flag"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The fields of Kubernetes that the manifest uses, as the API's reference has them. Not the types of k8s.io/api: compiling those takes
// longer than compiling and testing everything else here.
type (
	meta struct {
		Name   string
		Labels map[string]string
	}
	service struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			ClusterIP                string `yaml:"clusterIP"`
			PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
			Selector                 map[string]string
			Ports                    []struct {
				Name, Protocol string
				Port           int
			}
		}
	}
	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
	container struct {
		Name, Image string
		Args        []string
		Env         []struct {
			Name      string
			ValueFrom struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name, Protocol string
			ContainerPort  int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		VolumeMounts   []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	statefulSet struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			ServiceName         string `yaml:"serviceName"`
			Replicas            int
			PodManagementPolicy string `yaml:"podManagementPolicy"`
			Selector            struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata meta
				Spec     struct {
					TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
					Containers                    []container
					Volumes                       []struct {
						Name   string
						Secret struct {
							SecretName string `yaml:"secretName"`
						}
					}
				}
			}
			VolumeClaimTemplates []struct {
				Metadata meta
				Spec     struct {
					AccessModes []string `yaml:"accessModes"`
					Resources   struct{ Requests struct{ Storage string } }
				}
			} `yaml:"volumeClaimTemplates"`
		}
	}
)

// TestManifest checks that the manifest has no other field than these, its parts fit each other,
// and its flags are those of kv.
func TestManifest(t *testing.T) {
	t.Parallel()
	text, err := os.Open("kv.yaml")
	require.NoError(t, err)
	defer text.Close()
	var service service
	var set statefulSet
	docs := yaml.NewDecoder(text)
	docs.KnownFields(true)
	require.NoError(t, docs.Decode(&service))
	require.NoError(t, docs.Decode(&set))
	require.Equal(t, io.EOF, docs.Decode(&set), "there are two documents")
	require.Equal(t, "v1 Service", service.APIVersion+" "+service.Kind)
	require.Equal(t, "apps/v1 StatefulSet", set.APIVersion+" "+set.Kind)
	require.Equal(t, "None", service.Spec.ClusterIP)
	require.True(t, service.Spec.PublishNotReadyAddresses)
	require.Equal(t, service.Metadata.Name, set.Spec.ServiceName)
	pod := set.Spec.Template
	require.Equal(t, set.Spec.Selector.MatchLabels, pod.Metadata.Labels)
	require.Equal(t, service.Spec.Selector, pod.Metadata.Labels)

	c := pod.Spec.Containers[0]
	ports := map[string]int{}
	for i, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
		require.Equal(t, service.Spec.Ports[i].Port, p.ContainerPort, p.Name)
	}
	mounts := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		mounts[v.Name] = true
	}
	for _, v := range set.Spec.VolumeClaimTemplates {
		mounts[v.Metadata.Name] = true
	}
	paths := ""
	for _, m := range c.VolumeMounts {
		require.True(t, mounts[m.Name], m.Name)
		paths += m.MountPath + " "
	}
	env := strings.NewReplacer("$(POD_NAME)", "kv-2", "$(POD_IP)", "10.0.0.7")
	var cfg config
	flags := flag.NewFlagSet("kv", flag.ContinueOnError)
	cfg.registerFlags(flags)
	var args []string
	for _, a := range c.Args {
		args = append(args, env.Replace(a))
	}
	require.NoError(t, flags.Parse(args))
	require.Equal(t, set.Spec.Replicas, cfg.size)
	require.Equal(t, "kv-2", cfg.name)
	require.Equal(t, "kv", set.Metadata.Name, "the pods are kv-0 to kv-4")
	require.Equal(t, service.Metadata.Name+":"+strconv.Itoa(ports["gossip"]), cfg.seeds)
	require.True(t, strings.HasSuffix(cfg.listen, ":"+strconv.Itoa(ports["kv"])))
	require.True(t, strings.HasSuffix(cfg.web, ":"+strconv.Itoa(ports["web"])))
	for _, p := range []string{cfg.dir, cfg.key[:7], cfg.ca[:7]} {
		require.Contains(t, paths, p)
	}
	require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path)
	require.Greater(t, pod.Spec.TerminationGracePeriodSeconds, 10,
		"Grace and the farewell take up to 10 s")
}
