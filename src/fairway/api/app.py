"""Create the FastAPI app: routes, middleware and error handlers; every route must have an access rule."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from fairway import __version__
from fairway.api.auth import GuardedRoute, require_rules
from fairway.api.bodies import LargeBodies
from fairway.api.forward import EngineServer
from fairway.api.load import RequestQueues
from fairway.api.middleware import RequestGuard, RequestMetrics
from fairway.api.problems import as_api_error, error_response
from fairway.api.rate_limit import WrongTokenLimiter
from fairway.api.routes import alerts as alert_routes
from fairway.api.routes import costs as cost_routes
from fairway.api.routes import fleet as fleet_routes
from fairway.api.routes import jobs as job_routes
from fairway.api.routes import policy as policy_routes
from fairway.api.routes import use as use_routes
from fairway.api.routes.budget_raises import add_budget_raise_routes
from fairway.api.routes.gpu_health import add_gpu_health_routes
from fairway.api.routes.logins import add_login_routes
from fairway.api.routes.notices import add_notice_routes
from fairway.api.routes.slos import add_slo_routes
from fairway.api.routes.what_if import add_what_if_routes
from fairway.ledger import Ledger
from fairway.services.alerts import AlertServices
from fairway.services.budget_raises import BudgetRaises
from fairway.services.cost_queries import CostQueries
from fairway.services.fleets import Fleets
from fairway.services.jobs import JobServices
from fairway.services.notices import NoticeQueries
from fairway.services.policy import PolicyServices
from fairway.services.slos import SloQueries


def create_app(
    ledger: Ledger,
    registry: CollectorRegistry,
    fleets: Fleets,
    policy: PolicyServices,
    jobs: JobServices,
    engine_server: EngineServer | None = None,
) -> FastAPI:
    """Create the API of one ledger. It has no state of its own: any number of replicas may share a ledger.

    With an `engine_server`, that one answers what asks an engine.
    """
    app = FastAPI(
        title="Fairway",
        version=__version__,
        description="What a GPU fleet has, how it is, its policy, its jobs, what they cost, and who may ask.",
        # Served by our own routes, which have rules; the pages would load scripts from elsewhere.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.router.route_class = GuardedRoute
    app.state.token_limiter = WrongTokenLimiter()
    app.state.large_bodies = LargeBodies()
    app.state.engine_server = engine_server
    app.state.ledger = ledger
    app.state.fleets = fleets
    fleet_routes.add_fleet_routes(app, ledger, fleets)
    use_routes.add_use_routes(app, ledger, fleets)
    policy_routes.add_plan_routes(app, ledger, fleets, policy)
    policy_routes.add_history_routes(app, ledger, fleets)
    job_routes.add_submit_routes(app, ledger, jobs)
    job_routes.add_job_routes(app, ledger, fleets, jobs)
    job_routes.add_change_routes(app, ledger, fleets, jobs)
    add_gpu_health_routes(app, ledger)
    costs = CostQueries(ledger, fleets)
    cost_routes.add_report_routes(app, costs)
    cost_routes.add_statement_routes(app, costs)
    cost_routes.add_price_routes(app, costs)
    add_what_if_routes(app, ledger, fleets)
    add_budget_raise_routes(app, BudgetRaises(ledger, fleets))
    alert_routes.add_alert_routes(app, AlertServices(ledger, fleets))
    add_notice_routes(app, NoticeQueries(ledger, fleets))
    add_slo_routes(app, SloQueries(ledger, fleets))
    fleet_routes.add_token_routes(app, ledger, fleets)
    add_login_routes(app, ledger)
    fleet_routes.add_status_routes(app, ledger, fleets, registry)
    require_rules(app)
    app.state.queues = RequestQueues(registry)
    app.state.registry = registry
    app.add_exception_handler(HTTPException, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_error)
    app.add_middleware(RequestGuard, metrics=RequestMetrics(registry), large_bodies=app.state.large_bodies)
    return app


async def _handle_error(request: Request, error: Exception) -> Response:
    return await error_response(request, as_api_error(error), request.state.request_id)
