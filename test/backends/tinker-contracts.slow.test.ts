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
