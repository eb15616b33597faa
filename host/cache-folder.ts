import { homedir } from 'node:os';
import path from 'node:path';

/** Folder for downloads, builds and copies of stored objects: per user, because they belong to no single project. */
export function cacheFolder(
  env: Readonly<NodeJS.ProcessEnv> = process.env,
  platform: NodeJS.Platform = process.platform,
  home: string = homedir(),
): string {
  if (env['RATCHET_CACHE']) return env['RATCHET_CACHE'];
  // The XDG specification requires relative paths to be ignored.
  const xdg = env['XDG_CACHE_HOME'];
  if (xdg !== undefined && path.isAbsolute(xdg)) return path.join(xdg, 'ratchet');
  return platform === 'darwin' ? path.join(home, 'Library', 'Caches', 'ratchet') : path.join(home, '.cache', 'ratchet');
}
