/** The adapter of Docker and Podman, against a real engine where one is named: `RATCHET_TEST_ENGINE_SOCKET`. */
import { DockerProvider } from '../../../backends/sandboxes/docker/docker-provider.ts';
import { sandboxContract } from './sandbox.contract.ts';

const { RATCHET_TEST_ENGINE_SOCKET: socket, RATCHET_TEST_ENGINE_IMAGE: image = 'python:3' } = process.env;
const skip = socket === undefined ? 'RATCHET_TEST_ENGINE_SOCKET names no socket of Docker or Podman' : false;

sandboxContract('a real engine', {
  skip,
  request: { image },
  open: (snapshots) => Promise.resolve(new DockerProvider({ socket: socket!, snapshots })),
});
