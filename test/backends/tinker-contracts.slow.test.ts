import path from 'node:path';
import { startTinkerStandIn } from '../stand-ins/tinker/server.ts';
import { tinkerContracts } from './tinker-suites.ts';

const preset = 'preset:reverse-text-0.2m';

tinkerContracts('a Tinker server', {
  preset,
  startsAfresh: true,
  async start(root) {
    const folder = path.join(root, 'server');
    const server = await startTinkerStandIn({ folder, model: preset, maxAdapters: 64, heedsOptimizer: true });
    return { url: server.url, base: path.join(folder, 'base'), close: () => server.close() };
  },
});

// Like SkyRL 0.3.0: a checkpoint's moments are always loaded with it.
tinkerContracts('a Tinker server that loads moments unasked', {
  preset,
  startsAfresh: false,
  async start(root) {
    const folder = path.join(root, 'server');
    const server = await startTinkerStandIn({ folder, model: preset, maxAdapters: 64 });
    return { url: server.url, base: path.join(folder, 'base'), close: () => server.close() };
  },
});

// Its key, protobuf, and sums in place of means.
process.env['RATCHET_TEST_TINKER_KEY'] = 'tml-of-the-hosted-service';
tinkerContracts('a Tinker server that speaks as the hosted service', {
  preset,
  startsAfresh: true,
  async start(root) {
    const folder = path.join(root, 'server');
    const hostedKey = 'tml-of-the-hosted-service';
    const server = await startTinkerStandIn({
      folder,
      model: preset,
      maxAdapters: 64,
      heedsOptimizer: true,
      hostedKey,
    });
    const apiKeyVar = 'RATCHET_TEST_TINKER_KEY';
    return {
      url: server.url,
      server: 'tinker',
      apiKeyVar,
      base: path.join(folder, 'base'),
      close: () => server.close(),
    };
  },
});

// Like SkyRL's FSDP backend: one model, trained in place, and sums. Its settings of Adam are heeded: they show in digests.
tinkerContracts('a Tinker server that holds one model', {
  preset,
  startsAfresh: true,
  holdsOne: true,
  async start(root) {
    const folder = path.join(root, 'server');
    const options = { holdsOne: true, heedsOptimizer: true, sessionTimeoutMs: 25_000 };
    const server = await startTinkerStandIn({ folder, model: preset, ...options });
    return { url: server.url, base: path.join(folder, 'base'), close: () => server.close() };
  },
});

// Protobuf alone, requests in order, samples in sessions, and weights in a folder of its own.
tinkerContracts('a Tinker server like TuFT', {
  preset,
  startsAfresh: true,
  async start(root) {
    const folder = path.join(root, 'server');
    const options = { isLikeTuft: true, heedsOptimizer: true, maxAdapters: 512 };
    const server = await startTinkerStandIn({ folder, model: preset, ...options });
    const checkpointDir = path.join(folder, 'checkpoints');
    return { url: server.url, checkpointDir, base: path.join(folder, 'base'), close: () => server.close() };
  },
});
