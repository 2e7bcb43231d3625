// A device plugin for GPUs that do not exist: the kubelet really allocates them, the device in the pod is /dev/null.
//
//	device_plugin COUNT SICK-FILE
//
// SICK-FILE holds the numbers of the unhealthy GPUs, separated by blanks; it is read every second. The program ends
// when the kubelet restarts, so that whoever keeps it running registers it anew.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "lab-gpu.sock"
	prefix   = "GPU-"
	pause    = time.Second
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	count    int
	sickFile string
}

func (p *plugin) devices() []*api.Device {
	text, _ := os.ReadFile(p.sickFile) // no file: every GPU is well
	sick := strings.Fields(string(text))
	found := make([]*api.Device, 0, p.count)
	for i := range p.count {
		health := api.Healthy
		if slices.Contains(sick, strconv.Itoa(i)) {
			health = api.Unhealthy
		}
		found = append(found, &api.Device{ID: prefix + strconv.Itoa(i), Health: health})
	}
	return found
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch tells the kubelet about every change until the kubelet hangs up.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	told := ""
	for {
		devices := p.devices()
		if now := fmt.Sprint(devices); now != told {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			told = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Allocate gives a container its GPUs the way NVIDIA's plugin does: an environment variable and device files.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		}
		for _, id := range container.DevicesIds {
			given.Devices = append(given.Devices, &api.DeviceSpec{
				HostPath:      os.DevNull,
				ContainerPath: "/dev/nvidia" + strings.TrimPrefix(id, prefix),
				Permissions:   "rw",
			})
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

func (p *plugin) serve(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { log.Fatal(server.Serve(listener)) }()
	return nil
}

func register() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: resource}
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: device_plugin COUNT SICK-FILE")
	}
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(api.DevicePluginPath, socket)
	gpus := &plugin{count: count, sickFile: os.Args[2]}
	if err := gpus.serve(path); err != nil {
		log.Fatal(err)
	}
	if err := register(); err != nil {
		log.Fatal(err)
	}
	for { // a starting kubelet empties the folder, our socket included
		if _, err := os.Stat(path); err != nil {
			return
		}
		time.Sleep(pause)
	}
}
