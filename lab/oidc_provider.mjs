// A real OpenID Connect provider for tests: panva's oidc-provider, with everything in memory.
// node oidc_provider.mjs FOLDER_WITH_NODE_MODULES SETTING.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));
const setting = JSON.parse(readFileSync(file, "utf8"));

const provider = new Provider(setting.issuer, {
  clients: setting.clients,
  jwks: { keys: setting.keys },
  cookies: { keys: ["only for tests"] },
  scopes: ["openid", "groups"],
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
  conformIdTokenClaims: setting.claims_in_user_info_only,
  pkce: { required: () => true },
  findAccount: (ctx, id) => setting.people[id] && ({
    accountId: id,
    claims: () => ({ sub: `subject-of-${id}`, ...setting.people[id] }),
  }),
  features: { devInteractions: { enabled: true } }, // any password: who is asked for is who it is
  ttl: { IdToken: 3600, AccessToken: 600, AuthorizationCode: 60, Grant: 3600, Interaction: 600, Session: 3600 },
});
const server = provider.listen(setting.port, "127.0.0.1");
const parent = process.ppid;
setInterval(() => { if (process.ppid !== parent) process.exit(0); }, 500); // never alone
process.on("SIGTERM", () => { server.close(); process.exit(0); });
