import { startContentServer } from '../bench/content-server.ts';
import { writeFileSync } from 'node:fs';
const s = await startContentServer({ varies: 'session', delayMs: Number(process.argv[2] ?? 50), ...(process.argv[3] ? { key: process.argv[3] } : {}) });
writeFileSync('/tmp/i9-a-try/url', s.url);
setInterval(() => writeFileSync('/tmp/i9-a-try/answered', String(s.answered.length)), 500);
